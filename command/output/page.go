package output

import "strings"

// Page says how to see the page of a server at a URL. Browsers have no certificate for the secure port.
func Page(url string) string {
	if strings.HasPrefix(url, "https:") {
		return "run karve kubectl proxy, and open http://127.0.0.1:8001/karve/"
	}
	return Printable(url)
}
