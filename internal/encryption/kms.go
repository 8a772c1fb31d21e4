package encryption

// This file is the provider kms, version 2. Values are encrypted with keys that are protected by a
// plug-in. The server connects to the plug-in using a Unix socket.
//
//	seed              32 random bytes, generated here and encrypted once by the plug-in (Encrypt), which returns the ID of its own key
//	key of a value    HKDF(seed, 32 random bytes before the value), for AES-GCM
//	stored value      EncryptedObject{value, key ID, encrypted seed, annotations of the plug-in}
//
// The plug-in is therefore called once per seed and not for each value: when the server starts,
// when the key ID changes, and to decrypt the seed of values written under another seed (Decrypt).
// Decrypted seeds are cached. Every minute its Status returns the current key ID and whether the
// plug-in is healthy. If it has not been healthy for three minutes, writes fail. Reads need no
// plug-in as long as the seed is cached.
//
// envelope.go encodes the EncryptedObject and the messages of the plug-in.

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/apiserver"
	storagevalue "k8s.io/apiserver/pkg/storage/value"
	aestransformer "k8s.io/apiserver/pkg/storage/value/encrypt/aes"
)

const (
	// interval of status calls
	healthyInterval = time.Minute
	// interval while the plug-in is unhealthy
	unhealthyInterval = 10 * time.Second
	// how long a result can be reused
	healthyTTL   = 20 * time.Second
	unhealthyTTL = 3 * time.Second
	// how long writes continue after the last healthy status
	writeGrace = 3 * time.Minute

	keyIDMax = 1 << 10
	// maximum size of an encrypted seed
	seedMax        = 1 << 10
	annotationsMax = 32 << 10

	// maximum number of annotation errors in a message
	annotationErrorsMax = 4
	// maximum size in bytes of a plug-in's text in an error
	textMax = 1 << 10
	// maximum number of cached seeds
	maxCachedSeeds = 1000
	seedBytes      = aestransformer.MinSeedSizeExtendedNonceGCM
)

// plugin is a provider of type kms.
type plugin struct {
	name    string
	remote  *remote
	figures *figures
	log     zerolog.Logger
	seed    atomic.Pointer[seed] // seed for new values, initially nil

	mu        sync.Mutex // guards the following fields
	version   string     // of the KMS API; "" until the first status
	lastCheck time.Time  // time of the last status call
	lastError error      // its result

	cacheLock sync.Mutex // guards opened
	seedCache map[string]storagevalue.Transformer
}

// seed encrypts new values.
type seed struct {
	storagevalue.Transformer
	object  envelope // without a value
	expires time.Time
}

func newPlugin(config *apiserver.KMSConfiguration, figures *figures, log zerolog.Logger) (*plugin, error) {
	r, err := newRemote(config.Endpoint, config.Timeout.Duration)
	if err != nil {
		return nil, err
	}
	return &plugin{name: config.Name, remote: r, figures: figures, log: log, seedCache: map[string]storagevalue.Transformer{}}, nil
}

// start polls the plug-in until ctx ends. If the plug-in is not available yet, the start of the
// server does not fail.
func (p *plugin) start(ctx context.Context) {
	told := p.logChange(p.check(ctx), "")
	go func() {
		for {
			pause := healthyInterval
			if told != "" {
				pause = unhealthyInterval
			}
			select {
			case <-ctx.Done():
				p.remote.close()
				return
			case <-time.After(pause):
			}
			told = p.logChange(p.check(ctx), told)
		}
	}()
}

// logChange logs an error if it has changed. It returns the text of the error.
func (p *plugin) logChange(err error, told string) string {
	if err == nil {
		return ""
	}
	if err.Error() != told {
		p.log.Error().Err(err).Str("name", p.name).Msg("kms plugin failed health check probe")
	}
	return err.Error()
}

// ---- Values

func (p *plugin) seal(v value, plain []byte) ([]byte, error) {
	s := p.seed.Load()
	if s == nil {
		return nil, errors.New("got unexpected nil transformer")
	}
	if now := time.Now(); now.After(s.expires) && !v.late {
		return nil, fmt.Errorf("encryptedDEKSource with keyID hash %q expired at %s (current time is %s)", logHash(s.object.keyID),
			s.expires.Format(time.RFC3339), now.Format(time.RFC3339))
	}
	data, err := s.TransformToStorage(context.Background(), plain, v)
	if err != nil {
		return nil, err
	}
	o := s.object
	o.data = data
	return o.marshal(), nil
}

func (p *plugin) open(v value, sealed []byte) (plain []byte, stale bool, err error) {
	var o envelope
	if err = o.unmarshal(sealed); err == nil {
		err = o.validate()
	}
	if err != nil {
		return nil, false, err
	}
	t, name, err := p.seedTransformer(&o)
	if err != nil {
		return nil, false, err
	}
	if plain, stale, err = t.TransformFromStorage(context.Background(), o.data, v); err != nil {
		return nil, false, err
	}
	if name != "" {
		// Cache it only after it has decrypted a value, because the plug-in may have
		// returned a wrong seed.
		p.cacheSeed(name, t)
	}
	s := p.seed.Load()
	return plain, stale || s == nil || s.object.keyID != o.keyID || s.object.source != o.source, nil
}

// seedTransformer returns the transformer for the seed of an envelope. name is not empty if the
// plug-in has just decrypted the seed, which is then not verified yet.
func (p *plugin) seedTransformer(o *envelope) (t storagevalue.Transformer, name string, err error) {
	name = o.seedName()
	p.cacheLock.Lock()
	t = p.seedCache[name]
	p.cacheLock.Unlock()
	if t != nil {
		return t, "", nil
	}
	p.figures.misses.Inc()
	key, err := p.remote.decrypt(context.Background(), uuid.NewString(), o)
	if err != nil {
		return nil, "", fmt.Errorf("failed to decrypt DEK, error: %w", err)
	}
	t, err = transformerOf(o.source, key)
	return t, name, err
}

func transformerOf(source int32, key []byte) (storagevalue.Transformer, error) {
	if source == sourceSeed {
		return aestransformer.NewHKDFExtendedNonceGCMTransformer(key)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return aestransformer.NewGCMTransformer(block)
}

func (p *plugin) cacheSeed(name string, t storagevalue.Transformer) {
	p.cacheLock.Lock()
	defer p.cacheLock.Unlock()
	if p.seedCache[name] == nil && len(p.seedCache) >= maxCachedSeeds {
		clear(p.seedCache)
	}
	p.seedCache[name] = t
}

// ---- The state of the plug-in

// check calls the plug-in's Status, unless a recent result exists. If the key ID has changed, it
// creates a new seed.
func (p *plugin) check(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	good := healthyTTL
	if p.lastError != nil {
		good = unhealthyTTL
	}
	if !p.lastCheck.IsZero() && time.Since(p.lastCheck) < good {
		return p.lastError
	}
	p.lastError = p.checkLocked(ctx)
	p.lastCheck = time.Now()
	return p.lastError
}

func (p *plugin) checkLocked(ctx context.Context) error {
	until := time.Now().Add(writeGrace)
	s, err := p.remote.status(ctx)
	if err != nil {
		return fmt.Errorf("failed to perform status section of the healthz check for KMS Provider %s, error: %w", p.name, err)
	}
	var errs []error
	if s.healthz != "ok" {
		errs = append(errs, fmt.Errorf("got unexpected healthz status: %s", s.healthz))
	}
	switch {
	case s.version != "v2" && s.version != "v2beta1":
		errs = append(errs, fmt.Errorf("expected KMSv2 API version v2, got %s", s.version))
	case p.version == "":
		p.version = s.version
	case p.version != s.version:
		errs = append(errs, fmt.Errorf("KMSv2 API version should not change after the initial status response version %s, got %s", p.version, s.version))
	}
	if err := validateKeyID(s.keyID); err != nil {
		errs = append(errs, fmt.Errorf("got invalid KMSv2 KeyID hash %q: %w", logHash(s.keyID), err))
	} else if err := p.extend(ctx, s.keyID, until); err != nil {
		errs = append(errs, err)
	}
	if err := utilerrors.Reduce(utilerrors.NewAggregate(errs)); err != nil {
		return fmt.Errorf("kmsv2 Provider %s is not healthy, error: %w", p.name, err)
	}
	return nil
}

// extend allows writes until the given time. It keeps the current seed if the key ID is unchanged,
// and creates a new seed otherwise.
func (p *plugin) extend(ctx context.Context, keyID string, until time.Time) error {
	if now := p.seed.Load(); now != nil && now.object.keyID == keyID {
		p.seed.Store(&seed{now.Transformer, now.object, until})
		return nil
	}
	next, err := p.newSeed(ctx, until)
	if err == nil && next.object.keyID != keyID {
		err = fmt.Errorf("statusKeyIDHash=%q, encryptKeyIDHash=%q", logHash(keyID), logHash(next.object.keyID))
	}
	if err != nil {
		return fmt.Errorf("failed to rotate DEK: %w", err)
	}
	p.cacheSeed(next.object.seedName(), next.Transformer)
	p.seed.Store(next)
	return nil
}

func (p *plugin) newSeed(ctx context.Context, until time.Time) (*seed, error) {
	key := make([]byte, seedBytes)
	_, _ = rand.Read(key) // never fails
	object, err := p.remote.encrypt(ctx, uuid.NewString(), key)
	if err != nil {
		return nil, fmt.Errorf("failed to encrypt DEK, error: %w", err)
	}
	object.source, object.data = sourceSeed, []byte{0} // a dummy value
	if err := object.validate(); err != nil {
		return nil, err
	}
	object.data = nil
	if err := p.verifySeed(ctx, key, &object); err != nil {
		return nil, err
	}
	t, err := transformerOf(sourceSeed, key)
	return &seed{t, object, until}, err
}

// verifySeed returns an error unless the plug-in conceals the seed and can decrypt it.
// kube-apiserver lacks this check: if its plug-in cannot decrypt a seed, all values written under
// the seed are lost with the next restart.
func (p *plugin) verifySeed(ctx context.Context, key []byte, object *envelope) error {
	if bytes.Contains(object.encryptedSeed, key) {
		return errors.New("the plug-in returned the DEK seed in the clear")
	}
	for _, text := range object.annotations {
		if bytes.Contains(text, key) {
			return errors.New("the plug-in returned the DEK seed in an annotation")
		}
	}
	decrypted, err := p.remote.decrypt(ctx, uuid.NewString(), object)
	if err != nil {
		return fmt.Errorf("failed to decrypt the DEK seed that was just encrypted, error: %w", err)
	}
	if subtle.ConstantTimeCompare(decrypted, key) == 0 {
		return errors.New("the plug-in decrypts the DEK seed that it has just encrypted to another one")
	}
	return nil
}

// ---- Validation of responses

func (o *envelope) validate() error {
	switch {
	case o.source != sourceKey && o.source != sourceSeed:
		return fmt.Errorf("unknown encryptedDEKSourceType: %d", o.source)
	case len(o.data) == 0:
		return errors.New("encrypted data is empty")
	case len(o.encryptedSeed) == 0:
		return errors.New("failed to validate encrypted DEK source: encrypted DEK source is empty")
	case len(o.encryptedSeed) > seedMax:
		return fmt.Errorf("failed to validate encrypted DEK source: encrypted DEK source is %d bytes, which exceeds the max size of %d",
			len(o.encryptedSeed), seedMax)
	}
	if err := validateKeyID(o.keyID); err != nil {
		return fmt.Errorf("failed to validate key id: %w", err)
	}
	var errs []error
	size := 0
	for _, name := range slices.Sorted(maps.Keys(o.annotations)) {
		if bad := validation.IsFullyQualifiedDomainName(field.NewPath("annotations"), name); bad != nil && len(errs) < annotationErrorsMax {
			errs = append(errs, errors.New(truncate(bad.ToAggregate().Error())))
		}
		size += len(name) + len(o.annotations[name])
	}
	if size > annotationsMax {
		errs = append(errs, fmt.Errorf("total size of annotations is %d, which exceeds the max size of %d", size, annotationsMax))
	}
	if err := utilerrors.NewAggregate(errs); err != nil {
		return fmt.Errorf("failed to validate annotations: %w", err)
	}
	return nil
}

func validateKeyID(id string) error {
	switch {
	case id == "":
		return errors.New("keyID is empty")
	case len(id) > keyIDMax:
		return fmt.Errorf("keyID is %d bytes, which exceeds the max size of %d", len(id), keyIDMax)
	}
	return nil
}

// truncate truncates a text of the plug-in to textMax bytes.
func truncate(text string) string {
	if len(text) <= textMax {
		return text
	}
	return strings.ToValidUTF8(text[:textMax], "") + "…"
}

func logHash(keyID string) string {
	if keyID == "" {
		return ""
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(keyID)))
}
