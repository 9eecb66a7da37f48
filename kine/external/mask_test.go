package external

import (
	"errors"
	"strings"
	"testing"
)

// A driver may quote the endpoint, or a part of it. Passwords do not show, and all else is as it was.
func TestPasswordsAreMasked(t *testing.T) {
	for _, test := range []struct{ endpoint, text, want string }{
		// Passwords that are a part of the message, of the host, of the user or of the scheme.
		{"postgres://u:p@h/db", "dial tcp: connect: connection refused", ""},
		{"postgres://u:tcp@h/db", "dial tcp 127.0.0.1:5432: connect: connection refused", ""},
		{"postgres://u:db@db.example.com/db", "hostname resolving error: lookup db.example.com: no such host", ""},
		{"postgres://karve:karve@h/karve", `password authentication failed for user "karve" (database=karve)`, ""},
		{"mysql://u:o@tcp(h:3306)/db", "Error 1045 (28000): Access denied for user 'u'@'localhost' (using password: YES)", ""},
		{"postgres://u:password@h/db", "password authentication failed", ""},

		// The URL as it was written, and as a driver writes it.
		{"postgres://u:tcp@h/db", "dial tcp: postgres://u:tcp@h/db", "dial tcp: postgres://u:xxxxx@h/db"},
		{"postgres://u:p%40ss%2Fw0rd@h/db", "cannot parse `postgres://u:p%40ss%2Fw0rd@h/db`", "cannot parse `postgres://u:xxxxx@h/db`"},
		{"postgres://u:p%40ss%2Fw0rd@h/db", "cannot parse postgres://u:p@ss/w0rd@h/db", "cannot parse postgres://u:xxxxx@h/db"},
		{"postgres://u:a%20b@h/db", "postgres://u:a b@h/db and user=u password=a b host=h", "postgres://u:xxxxx@h/db and user=u password=xxxxx host=h"},
		{"postgres://u:a%22b@h/db", `bad "postgres://u:a\"b@h/db"`, `bad "postgres://u:xxxxx@h/db"`},
		{"postgres://u:ab@h/db?password=abc", "u:abc@h u:ab@h", "u:xxxxx@h u:xxxxx@h"},
		// Parameters.
		{"postgres://u@h/db?password=s3c%26ret", "postgres://u@h/db?password=s3c%26ret&sslmode=disable", "postgres://u@h/db?password=xxxxx&sslmode=disable"},
		{"postgres://u@h/db?password=s3c%26ret", "user=u password='s3c&ret' host=h", "user=u password='xxxxx' host=h"},
		{"postgres://u@h/db?sslpassword=s3cret", "u@h sslpassword=s3cret", "u@h sslpassword=xxxxx"},
		// DSNs.
		{"mysql://u:tcp@tcp(h:3306)/db", "dial tcp: u:tcp@tcp(h:3306)/db", "dial tcp: u:xxxxx@tcp(h:3306)/db"},
		{"mysql://u:p@ss/w0rd@tcp(h:3306)/db", "u:p@ss/w0rd@tcp(h:3306)/db", "u:xxxxx@tcp(h:3306)/db"},
		// Another URL than the endpoint, such as one that a file names.
		{"postgres://u@h/db", "postgres://u:s3cret@other/db?password=s3cret&a=b", "postgres://u:xxxxx@other/db?password=xxxxx&a=b"},
	} {
		e, err := Parse(test.endpoint)
		if err != nil {
			t.Fatal(err)
		}
		want := test.want
		if want == "" {
			want = test.text
		}
		if got := e.scrub(errors.New(test.text)); got != want {
			t.Errorf("%s: %q is logged as %q, want %q", test.endpoint, test.text, got, want)
		}
	}
}

// pgx tries each address with and without TLS, and says the same of both.
func TestACauseIsNamedOnce(t *testing.T) {
	e, err := Parse("postgres://u:p@127.0.0.1:1/db")
	if err != nil {
		t.Fatal(err)
	}
	_, err = e.Open(t.Context(), Options{})
	if err == nil || strings.Count(err.Error(), "connection refused") != 1 || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v, want that the connection was refused, once", err)
	}
}

// What is wrong with an endpoint is not explained with a part of the password.
func TestAMalformedEndpointShowsNoPassword(t *testing.T) {
	for _, endpoint := range []string{
		"postgres://u:s3?cret@h/db", "postgres://u:3?cret@h/db", "postgres://u:s3#cret@h/db", "postgres://u:s3%zzcret@h/db",
		"postgres://u:3/cret@h/db", "postgres://u:3#cret@h/db", "postgres://u:3?a=cret@h/db", "postgres://u@x:3/cret@h/db",
		"mysql://u:3/cret@tcp(h:3306)", "mysql://u:3/cret@h:3306/db", "mysql://u:3?cret@h/db", "mysql://u:3#cret@h/db", "mysql://tcp:3/cret@tcp(h)",
		"postgres://u@h:x/db?password=s3cret", "postgres://u@h/db?password=s3cret&sslmode=perhaps", "postgres://u:s3cret@h/db?sslmode=perhaps",
		"mysql://u:s3/cret@h:3306", "mysql://u:s3@cret(x)@h/db",
	} {
		_, err := Parse(endpoint)
		if err == nil || strings.Contains(err.Error(), "cret") {
			t.Errorf("%s: %v, want an error without the password", endpoint, err)
		}
	}
}
