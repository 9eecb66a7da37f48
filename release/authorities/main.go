// Command authorities prints the certificate authorities that Mozilla trusts, as golang.org/x/crypto has them, for
// the image: go.sum pins them, and no distribution has to be there. Those that Mozilla trusts with conditions are
// left out, because a file of certificates has no place for conditions.
package main

import (
	"encoding/pem"
	"log"
	"os"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

func main() {
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		if err := pem.Encode(os.Stdout, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			log.Fatal(err)
		}
	}
}
