// Package kmstest is a KMS plug-in, version 2, for tests and labs. It encrypts with AES and reads
// the keys from a file instead of a TPM or a service. No production package imports it.
//
//	listener, err := net.Listen("unix", "kms.sock")
//	err = kmstest.Serve(listener, "kms.keys") // until the listener is closed
//
// The file contains a key per line, 32 bytes in base64. The first key is used for encryption. All
// keys are used for decryption. The file is read on each call, so that a new first line rotates the
// key. If the file does not exist, the plug-in is unhealthy. Unlike package encryption, it uses the
// gRPC library.
package kmstest

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

// Serve serves calls until the listener is closed.
func Serve(listener net.Listener, keys string) error {
	return ServeAltered(listener, keys, func(_ string, answer []byte, err error) ([]byte, error) { return answer, err })
}

// ServeAltered is like Serve, but simulates a faulty plug-in: alter replaces the response of each
// call of a method.
func ServeAltered(listener net.Listener, keys string, alter func(method string, answer []byte, err error) ([]byte, error)) error {
	p := &plugin{keys}
	server := grpc.NewServer(grpc.ForceServerCodec(raw{}))
	one := func(name string, answer func(fields) ([]byte, error)) grpc.MethodDesc {
		return grpc.MethodDesc{MethodName: name, Handler: func(_ any, _ context.Context, read func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			var message []byte
			if err := read(&message); err != nil {
				return nil, err
			}
			text, err := answer(parse(message))
			text, err = alter(name, text, err)
			return &text, err
		}}
	}
	server.RegisterService(&grpc.ServiceDesc{ServiceName: "v2.KeyManagementService", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{one("Status", p.status), one("Encrypt", p.encrypt), one("Decrypt", p.decrypt)}}, nil)
	return server.Serve(listener)
}

// plugin is a plug-in with the keys in a file.
type plugin struct{ file string }

// key is a key and its ID.
type key struct {
	id   string
	aead cipher.AEAD
}

func (p *plugin) keys() (all []key, err error) {
	text, err := os.ReadFile(p.file)
	if err != nil {
		return nil, err
	}
	for line := range strings.FieldsSeq(string(text)) {
		secret, err := base64.StdEncoding.DecodeString(line)
		if err != nil {
			return nil, err
		}
		block, err := aes.NewCipher(secret)
		if err != nil {
			return nil, err
		}
		aead, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			return nil, err
		}
		all = append(all, key{fmt.Sprintf("%x", sha256.Sum256(secret))[:16], aead})
	}
	if len(all) == 0 {
		return nil, errors.New("no key in the file")
	}
	return all, nil
}

func (p *plugin) status(fields) ([]byte, error) {
	all, err := p.keys()
	if err != nil {
		return message(1, "v2", 2, err.Error(), 3, "none"), nil
	}
	return message(1, "v2", 2, "ok", 3, all[0].id), nil
}

func (p *plugin) encrypt(asked fields) ([]byte, error) {
	all, err := p.keys()
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	salt := rand.Text() // authenticated data, to have an annotation
	annotation := string(message(1, "salt.kms.example", 2, salt))
	return message(1, string(all[0].aead.Seal(nil, nil, []byte(asked[1]), []byte(salt))), 2, all[0].id, 3, annotation), nil
}

func (p *plugin) decrypt(asked fields) ([]byte, error) {
	all, err := p.keys()
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	salt := parse([]byte(asked[4]))[2]
	for _, k := range all {
		if k.id != asked[3] {
			continue
		}
		plain, err := k.aead.Open(nil, nil, []byte(asked[1]), []byte(salt))
		if err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
		return message(1, string(plain)), nil
	}
	return nil, status.Errorf(codes.NotFound, "no key %s", asked[3])
}

// ---- Messages

// fields maps field numbers to values.
type fields map[protowire.Number]string

func parse(b []byte) fields {
	all := fields{}
	for len(b) > 0 {
		number, _, size := protowire.ConsumeTag(b)
		if size < 0 {
			return all
		}
		// all fields of the API are strings or bytes
		text, length := protowire.ConsumeBytes(b[size:])
		if length < 0 {
			return all
		}
		all[number], b = string(text), b[size+length:]
	}
	return all
}

// message encodes a message from pairs of field numbers and strings.
func message(parts ...any) (b []byte) {
	for i := 0; i < len(parts); i += 2 {
		b = protowire.AppendTag(b, protowire.Number(parts[i].(int)), protowire.BytesType)
		b = protowire.AppendString(b, parts[i+1].(string))
	}
	return b
}

// raw is a codec that leaves messages as bytes.
type raw struct{}

func (raw) Name() string                    { return "proto" }
func (raw) Marshal(v any) ([]byte, error)   { return *v.(*[]byte), nil }
func (raw) Unmarshal(b []byte, v any) error { *v.(*[]byte) = append([]byte(nil), b...); return nil }
