package backup

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"

	"filippo.io/age"
	"github.com/urfave/cli/v2"
)

// recipientsOf returns those for whom to seal a backup; none if it stays as it is.
func recipientsOf(c *cli.Context) ([]age.Recipient, error) {
	var all []age.Recipient
	for _, key := range c.StringSlice("recipient") {
		r, err := age.ParseX25519Recipient(key)
		if err != nil && strings.HasPrefix(strings.ToUpper(key), "AGE-SECRET-KEY-") {
			return nil, errors.New("--recipient: this is the secret key of an age identity, and others may have seen it: make another one, and name its public key, age1…")
		} else if err != nil {
			return nil, fmt.Errorf("--recipient %q: want the public key of an age identity, age1…, as age-keygen prints it", key)
		}
		all = append(all, r)
	}
	text, err := passphraseOf(c)
	if err != nil || text == "" {
		return all, err
	}
	if len(all) > 0 {
		return nil, errors.New("--recipient and --passphrase-file: choose one of them")
	}
	r, err := age.NewScryptRecipient(text)
	return []age.Recipient{r}, err
}

// sealFor returns a copy function that seals.
func sealFor(recipients []age.Recipient) func(io.Writer, io.Reader) error {
	return func(w io.Writer, plain io.Reader) error {
		sealing, err := age.Encrypt(w, recipients...)
		if err != nil {
			return err
		}
		return errors.Join(plainly(sealing, plain), sealing.Close())
	}
}

// passphraseOf reads the file of --passphrase-file.
func passphraseOf(c *cli.Context) (string, error) {
	file := c.String("passphrase-file")
	if file == "" {
		return "", nil
	}
	in := io.Reader(os.Stdin)
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return "", fmt.Errorf("--passphrase-file: %w", err)
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, 4096))
	if err != nil {
		return "", fmt.Errorf("--passphrase-file: %w", err)
	}
	passphrase := strings.TrimRight(string(text), "\r\n")
	if len(passphrase) < 8 {
		return "", fmt.Errorf("--passphrase-file %s: want 8 characters or more", file)
	}
	return passphrase, nil
}

// ageMark begins every sealed backup.
const ageMark = "age-encryption.org/"

// opened opens a backup, sealed or not, as often as the result is called.
func opened(c *cli.Context, f *os.File) (func() (io.ReadCloser, error), error) {
	if !isSealed(whole(f)) {
		return func() (io.ReadCloser, error) { return io.NopCloser(whole(f)), nil }, nil
	}
	identities, err := identitiesOf(c)
	if err != nil {
		return nil, err
	}
	if len(identities) == 0 {
		return nil, fmt.Errorf("%s is sealed: name its passphrase with --passphrase-file, or its age identity with --identity", f.Name())
	}
	key := fileKey{identities: identities}
	return func() (io.ReadCloser, error) {
		r, err := age.Decrypt(whole(f), &key)
		var not *age.NoIdentityMatchError
		if errors.As(err, &not) {
			return nil, fmt.Errorf("%s is sealed with another passphrase, or for another identity", f.Name())
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name(), err)
		}
		return io.NopCloser(r), nil
	}, nil
}

// whole reads an open file from its beginning, without moving its offset.
func whole(f *os.File) io.Reader { return io.NewSectionReader(f, 0, math.MaxInt64) }

// fileKey unwraps the key of one file a single time, because with a passphrase that takes seconds on a board.
type fileKey struct {
	identities []age.Identity
	key        []byte
}

func (k *fileKey) Unwrap(stanzas []*age.Stanza) ([]byte, error) {
	for _, i := range k.identities {
		if k.key != nil {
			break
		}
		key, err := i.Unwrap(stanzas)
		if err == nil {
			k.key = key
		} else if !errors.Is(err, age.ErrIncorrectIdentity) {
			return nil, err
		}
	}
	if k.key == nil {
		return nil, age.ErrIncorrectIdentity
	}
	return slices.Clone(k.key), nil
}

func isSealed(r io.Reader) bool {
	begin := make([]byte, len(ageMark))
	_, err := io.ReadFull(r, begin)
	return err == nil && string(begin) == ageMark
}

func identitiesOf(c *cli.Context) ([]age.Identity, error) {
	if file := c.String("identity"); file != "" {
		f, err := os.Open(file)
		if err != nil {
			return nil, fmt.Errorf("--identity: %w", err)
		}
		defer f.Close()
		found, err := age.ParseIdentities(f)
		if err != nil {
			return nil, fmt.Errorf("--identity %s: this is no file of age identities, as age-keygen writes them", file) // the parser may quote it
		}
		return found, nil
	}
	text, err := passphraseOf(c)
	if err != nil || text == "" {
		return nil, err
	}
	i, err := age.NewScryptIdentity(text)
	return []age.Identity{i}, err
}
