package main

// This file runs three servers on an etcd cluster with three members and causes faults.

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	members    = 3  // number of etcd members and number of servers
	leaseTries = 60 // seconds to wait until the lease of a killed server has expired
)

// A cluster holds the etcd members and the state shared by the servers.
type cluster struct {
	dir     string
	members []*process
	urls    []string
	moves   int // number of migrations into etcd; each uses a new prefix
	signer  *signer
	turn    int // selects the next victim; used by the timetable only
}

// newCluster prepares the members of etcd without starting them.
func newCluster(dir string, alarm func(error)) (*cluster, error) {
	c := &cluster{dir: dir}
	var initial, peers []string
	for i := range members {
		client, err1 := keepPort()
		peer, err2 := keepPort()
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		c.urls, peers = append(c.urls, fmt.Sprint("http://127.0.0.1:", client)), append(peers, fmt.Sprint("http://127.0.0.1:", peer))
		initial = append(initial, fmt.Sprintf("m%d=%s", i, peers[i]))
	}
	for i := range members {
		c.members = append(c.members, &process{name: fmt.Sprint("etcd-", i), dir: dir, alarm: alarm, args: func() []string {
			return []string{*etcdBinary, "--name", fmt.Sprint("m", i), "--data-dir", filepath.Join(dir, fmt.Sprint("etcd-", i)),
				"--listen-client-urls", c.urls[i], "--advertise-client-urls", c.urls[i], "--listen-peer-urls", peers[i], "--initial-advertise-peer-urls", peers[i],
				"--initial-cluster", strings.Join(initial, ","), "--initial-cluster-token", dir, "--socket-reuse-port", "--log-level", "error",
				"--heartbeat-interval", "300", "--election-timeout", "3000"}
		}})
	}
	var err error
	c.signer, err = newSigner(dir)
	return c, err
}

func (c *cluster) prefix() string { return fmt.Sprint("/registry-", c.moves) }

// flags returns the flags for etcd, for serving and migrating.
func (c *cluster) flags() []string {
	return []string{"--etcd-servers", strings.Join(c.urls, ","), "--etcd-prefix", c.prefix()}
}

// each calls do for all members or servers concurrently.
func each[T any](all []T, do func(T) error) error {
	errs := make([]error, len(all))
	var running sync.WaitGroup
	for i, one := range all {
		running.Go(func() { errs[i] = do(one) })
	}
	running.Wait()
	return errors.Join(errs...)
}

func (c *cluster) killAll() error {
	return each(c.members, func(m *process) error { return m.end(syscall.SIGKILL) })
}

func (c *cluster) startAll() error { return each(c.members, (*process).run) }

// ---- Faults ----

// unanswered reports whether a response is allowed while etcd is unavailable or has just lost a
// member. It is unknown whether a write was executed.
func unanswered(_, _ string, a answer) bool {
	return a.code == http.StatusGatewayTimeout || a.code == http.StatusInternalServerError || a.code == http.StatusServiceUnavailable
}

// slowly reports whether a response is allowed at any time on a busy machine: etcd took longer than
// the server waits.
func slowly(_, _ string, a answer) bool {
	return a.code == http.StatusGatewayTimeout || a.code == http.StatusInternalServerError && strings.Contains(string(a.body), "etcdserver: ")
}

// ofACluster returns the faults for several servers.
func (s *subject) ofACluster() []*trouble {
	return []*trouble{s.etcdKilled(), s.etcdHeld(), s.memberKilled(), s.stoppedWithoutEtcd(), s.oneKilled(), s.rollingRestart(),
		s.renewedCertificate(), s.migrated()}
}

func (s *subject) etcdKilled() *trouble {
	return &trouble{name: "etcd killed", sees: leave{cut: true, refuses: unanswered, logs: true, late: true, latest: true},
		plant: func() (string, error) { return "", s.etcd.killAll() },
		mend:  func() error { return s.etcd.startAll() }}
}

func (s *subject) etcdHeld() *trouble {
	all := func(signal syscall.Signal) error {
		return each(s.etcd.members, func(m *process) error { return m.signal(signal) })
	}
	return &trouble{name: "etcd held", sees: leave{cut: true, refuses: unanswered, logs: true, late: true, latest: true},
		plant: func() (string, error) { return "", all(holdSignal) },
		mend:  func() error { return all(releaseSignal) }}
}

func (s *subject) memberKilled() *trouble {
	var victim *process
	return &trouble{name: "etcd member killed", sees: leave{cut: true, refuses: unanswered, logs: true, late: true, latest: true},
		plant: func() (string, error) {
			s.etcd.turn++
			victim = s.etcd.members[s.etcd.turn%members]
			return "", victim.end(syscall.SIGKILL)
		},
		mend: func() error { return victim.run() }}
}

// stoppedWithoutEtcd stops a server while etcd is down. The server must exit nevertheless.
func (s *subject) stoppedWithoutEtcd() *trouble {
	var victim *server
	return &trouble{name: "SIGTERM without etcd", sees: leave{cut: true, refuses: unanswered, logs: true, late: true, latest: true}, brief: true,
		plant: func() (string, error) {
			s.etcd.turn++
			victim = s.servers[s.etcd.turn%members]
			if err := s.etcd.killAll(); err != nil {
				return "", err
			}
			pause(s.over, *hold)
			begin := time.Now()
			err := victim.end(syscall.SIGTERM)
			return fmt.Sprintf("it ended after %.1f s", time.Since(begin).Seconds()), err
		},
		mend: func() error { return errors.Join(s.etcd.startAll(), victim.start()) }}
}

func (s *subject) oneKilled() *trouble {
	var victim *server
	return &trouble{name: "one server killed", sees: leave{cut: true, latest: true},
		plant: func() (string, error) {
			s.etcd.turn++
			victim = s.servers[s.etcd.turn%members]
			return "", victim.end(syscall.SIGKILL)
		},
		mend: func() error { return victim.start() }}
}

// rollingRestart restarts one server after the other. The server is removed from the load balancer
// before the restart and added again when it is ready.
func (s *subject) rollingRestart() *trouble {
	return &trouble{name: "rolling restart", sees: leave{cut: true, latest: true}, brief: true,
		plant: func() (string, error) {
			for i, server := range s.servers {
				s.front.serve(slices.Concat(s.servers[:i], s.servers[i+1:])...)
				if err := errors.Join(server.end(syscall.SIGTERM), server.start()); err != nil {
					return "", err
				}
				if err := s.recover(); err != nil {
					return "", err
				}
			}
			s.front.serve(s.servers...)
			return "", nil
		},
		mend: func() error { return nil }}
}

// renewedCertificate replaces the file with the certificate and the key. Every server must use the
// new certificate for new connections.
func (s *subject) renewedCertificate() *trouble {
	return &trouble{name: "certificate renewed", brief: true,
		plant: func() (string, error) {
			serial, err := s.etcd.signer.renew()
			if err != nil {
				return "", err
			}
			begin := time.Now()
			for _, server := range s.servers {
				if err := await(server.name+" shows the new certificate", func() bool {
					is, err := server.certificate()
					return err == nil && is.SerialNumber.Cmp(serial) == 0
				}); err != nil {
					return "", err
				}
			}
			return fmt.Sprintf("all show it after %.1f s", time.Since(begin).Seconds()), nil
		},
		mend: func() error { return nil }}
}

// migrated migrates the data to a file, starts a server with the file, and migrates the data back
// to etcd with a different prefix.
func (s *subject) migrated() *trouble {
	var alone *server
	var home []*server
	return &trouble{name: "migrate there and back", sees: leave{cut: true, latest: true},
		plant: func() (string, error) {
			if err := each(s.servers, func(one *server) error { return one.end(syscall.SIGTERM) }); err != nil {
				return "", err
			}
			file := filepath.Join(s.dir, fmt.Sprintf("moved-%d.db", s.etcd.moves))
			said, err := s.toFile(file)
			if err != nil {
				return "", err
			}
			s.renumbered()
			home, alone = s.servers, s.newServer("alone", func() []string { return []string{"--data", file} })
			s.become(alone)
			return said, alone.start()
		},
		mend: func() error {
			if err := alone.end(syscall.SIGTERM); err != nil {
				return err
			}
			s.etcd.moves++
			if _, err := migrate("", filepath.Join(s.dir, fmt.Sprintf("moved-%d.db", s.etcd.moves-1)), s.etcd.flags()); err != nil {
				return err
			}
			s.renumbered()
			s.become(home...)
			return each(home, (*server).start)
		}}
}

// toFile migrates etcd's data to a file after the leases of killed servers have expired. Otherwise
// migrate assumes that etcd is in use and adds a billion to the revisions, so the file could not be
// migrated back.
func (s *subject) toFile(file string) (said string, err error) {
	for range leaseTries {
		if said, err = migrate("--to-file", file, s.etcd.flags()); err != nil || !strings.Contains(said, "a billion higher") {
			return said[strings.LastIndex(said, "\n")+1:], err
		}
		if err = os.Remove(file); err != nil {
			return said, err
		}
		time.Sleep(time.Second)
	}
	return said, errors.New("after all servers have ended etcd is still in use")
}

// renumbered records that the objects have new revisions. No server may run.
func (s *subject) renumbered() {
	s.lineage.Add(1)
	s.ledger.forgetRevisions()
}

// migrate runs the command and returns its output.
func migrate(direction, file string, flags []string) (string, error) {
	args := append([]string{"migrate", "--data", file}, flags...)
	if direction != "" {
		args = append(args, direction)
	}
	out, err := exec.Command(*binary, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("apilet migrate: %w: %s", err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// ---- Certificates ----

// A signer is a certificate authority. All certificates are written to the same file, including the
// key.
type signer struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte // the authority's certificate
}

func newSigner(dir string) (*signer, error) {
	s := &signer{dir: dir}
	template := &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, key, err := s.sign(template)
	if err != nil {
		return nil, err
	}
	s.key, s.pem = key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if s.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	_, err = s.renew()
	return s, err
}

// sign creates a new key and a certificate. The authority signs the certificate; without an
// authority the certificate is self-signed.
func (s *signer) sign(template *x509.Certificate) ([]byte, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template.SerialNumber, template.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: "soak"}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().AddDate(1, 0, 0)
	parent, by := template, key
	if s.cert != nil {
		parent, by = s.cert, s.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
	return der, key, err
}

func (s *signer) file() string { return filepath.Join(s.dir, "serving.pem") }

// renew replaces the file by a new certificate and its key.
func (s *signer) renew() (serial *big.Int, err error) {
	template := &x509.Certificate{IPAddresses: []net.IP{{127, 0, 0, 1}}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, key, err := s.sign(template)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	text := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})...)
	if err := os.WriteFile(s.file()+".new", text, 0o600); err != nil {
		return nil, err
	}
	return template.SerialNumber, os.Rename(s.file()+".new", s.file())
}
