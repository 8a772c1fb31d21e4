package main

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// columnsOf returns the table columns of a resource, as kubectl get prints them.
func columnsOf(res *resource) []metav1.TableColumnDefinition { panic("skeleton") }

// cellsOf returns one row's cells for columnsOf(res). now is for ages.
func cellsOf(res *resource, obj object, now time.Time) []any { panic("skeleton") }
