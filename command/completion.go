package command

import (
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"
)

// completionScripts ask karve itself, by the last argument that urfave/cli
// answers with one proposal a line, and kubectl for what is kubectl's.
var completionScripts = map[string]string{
	"bash": `_karve() {
  local word=${COMP_WORDS[COMP_CWORD]} line
  local -a before=("${COMP_WORDS[@]:1:COMP_CWORD-1}")
  COMPREPLY=()
  if [ "${before[0]}" = kubectl ]; then
    while IFS= read -r line; do
      case $line in :*) ;; *) COMPREPLY+=("${line%%$'\t'*}") ;; esac
    done < <(karve kubectl __complete "${before[@]:1}" "$word" 2>/dev/null)
  else
    while IFS= read -r line; do COMPREPLY+=("${line%%:*}"); done < <(
      if [ "${word#-}" != "$word" ]; then before+=("$word"); fi
      karve "${before[@]}" --generate-bash-completion 2>/dev/null)
  fi
  COMPREPLY=($(compgen -W "${COMPREPLY[*]}" -- "$word"))
}
complete -o default -F _karve karve
`,
	"zsh": `#compdef karve
_karve() {
  local -a lines before
  before=("${(@)words[2,CURRENT-1]}")
  if [[ ${before[1]} == kubectl ]]; then
    lines=("${(@f)$(karve kubectl __complete "${(@)before[2,-1]}" "${words[CURRENT]}" 2>/dev/null)}")
    lines=("${(@)${(@)lines:#:*}%%$'\t'*}")
  else
    [[ ${words[CURRENT]} == -* ]] && before+=("${words[CURRENT]}")
    lines=("${(@f)$(karve "${(@)before}" --generate-bash-completion 2>/dev/null)}")
    lines=("${(@)lines%%:*}")
  fi
  compadd -- "${(@)lines}"
}
compdef _karve karve
`,
}

func completionCommand() *cli.Command {
	return &cli.Command{
		Name:      "completion",
		Usage:     "print a completion script: source <(karve completion bash)",
		ArgsUsage: "bash|zsh|fish",
		Action: func(c *cli.Context) error {
			shell := c.Args().First()
			if shell == "fish" {
				script, err := c.App.ToFishCompletion()
				fmt.Fprint(c.App.Writer, script)
				return err
			}
			script, ok := completionScripts[shell]
			if !ok {
				return fmt.Errorf("completion %q: want bash, zsh or fish", strings.TrimSpace(shell))
			}
			_, err := io.WriteString(c.App.Writer, script)
			return err
		},
	}
}
