//go:build !linux

package apiserver

func throwAwayFile(dir string, content []byte) (path string, remove func(), err error) {
	return temporaryFile(dir, content)
}
