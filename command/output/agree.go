package output

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"
)

// Agree asks the user at the terminal whether to do what would be done. If the answer is no, the
// error is refused.
func Agree(c *cli.Context, what, refused string) error {
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return fmt.Errorf("standard input is no terminal, so nobody can confirm; use --yes for %s", what)
	}
	if !Yes(c, what+". Continue?") {
		return errors.New(refused)
	}
	return nil
}

// Yes asks the user at the terminal.
func Yes(c *cli.Context, question string) bool {
	fmt.Fprint(c.App.ErrWriter, question, " [y/N] ")
	answer, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	return slices.Contains([]string{"y", "yes"}, strings.ToLower(strings.TrimSpace(answer)))
}
