package membership

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func encode(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestReadToken(t *testing.T) {
	dir := t.TempDir()
	file := func(text string, mode os.FileMode) string {
		path := filepath.Join(dir, fmt.Sprint(len(text), mode.Perm()&0o777))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	secret := strings.Repeat("s3cret-ABCD", 4)
	for _, path := range []string{file(NewToken(), 0o600), file(secret, 0o400), file(secret+"\r\n", 0o600), file(strings.Repeat("一二三四五六七八九十", 100), 0o600)} {
		if got, err := ReadToken(path); err != nil || strings.TrimSpace(got.secret) != got.secret {
			t.Errorf("got %q, %v", got.secret, err)
		} else if text := fmt.Sprintf("%v %+v %#v %s", got, got, got, *got); strings.Contains(text, got.secret) {
			t.Errorf("the token prints: %s", text)
		}
	}
	wrong := map[string]string{
		file("s3cret", 0o600):                          "32 or more",
		file("", 0o600):                                "has 0 characters",
		file(secret+"\n"+secret, 0o600):                "one line",
		file(strings.Repeat("s3cret", 1000), 0o600):    "one line",
		file(secret+strings.Repeat("\n", 5000), 0o600): "one line",
		file(secret+"\xff", 0o600):                     "one line",
		file(strings.Repeat("\u4e03", 31), 0o600):      "has 31 characters",
		file(strings.Repeat("s3cret", 6), 0o600):       "has 6 different characters, and could be guessed: want 10",
		filepath.Join(dir, "none"):                     "karve cluster-token create " + filepath.Join(dir, "none"),
		dir:                                            "not a regular file",
	}
	wrong[file(secret, 0o644)] = "chmod 0600 "
	wrong[file(secret, 0o640)] = "has mode 0640"
	for path, want := range wrong {
		_, err := ReadToken(path)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("got %v, want %q and the file's name in it", err, want)
		} else if strings.Contains(err.Error(), "s3cret") {
			t.Errorf("the error has the secret in it: %v", err)
		}
	}
	if one, two := NewToken(), NewToken(); one == two {
		t.Error("two tokens are the same")
	}
}
