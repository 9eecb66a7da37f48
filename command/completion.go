package command

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/command/options"
)

// completionScripts ask karve itself for proposals, one in each line, by the last argument that
// urfave/cli has for that, and kubectl for what is kubectl's.
var completionScripts = map[string]string{
	"bash": `_karve() {
  local word=${COMP_WORDS[COMP_CWORD]} line quoted
  local -a before=("${COMP_WORDS[@]:1:COMP_CWORD-1}") lines=()
  COMPREPLY=()
  # bash takes --option=value apart.
  if [ "$word" = = ]; then
    word=
  elif [ ${#before[@]} -gt 0 ] && [ "${before[${#before[@]}-1]}" = = ]; then
    unset "before[${#before[@]}-1]"
  fi
  if [ "${before[0]}" = kubectl ]; then
    while IFS= read -r line; do
      case $line in :*) ;; *) lines+=("${line%%$'\t'*}") ;; esac
    done < <(karve kubectl __complete "${before[@]:1}" "$word" 2>/dev/null)
  else
    while IFS= read -r line; do lines+=("${line%%:*}"); done < <(
      if [ "${word#-}" != "$word" ]; then before+=("$word"); fi
      karve "${before[@]}" --generate-bash-completion 2>/dev/null)
  fi
  # Not compgen -W: it expands what it proposes, and anybody may name an object $(command).
  for line in "${lines[@]}"; do
    [ -n "$line" ] || continue
    printf -v quoted %q "$line"
    if [[ $line == "$word"* || $quoted == "$word"* ]]; then COMPREPLY+=("$quoted"); fi
  done
}
complete -o default -F _karve karve
`,
	"fish": `function __karve_complete
  set -l before (commandline -opc)
  set -l word (commandline -ct)
  if test (count $before) -gt 1; and test "$before[2]" = kubectl
    karve kubectl __complete $before[3..-1] "$word" 2>/dev/null | string match -v ':*'
    return
  end
  string match -q -- '-*' "$word"; and set -a before "$word"
  karve $before[2..-1] --generate-bash-completion 2>/dev/null
end
# Files are only proposed where karve proposes nothing.
complete -c karve -f -n 'set -g __karve_proposals (__karve_complete); count $__karve_proposals >/dev/null' -a '$__karve_proposals'
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
if [[ ${funcstack[1]} == _karve ]]; then
  _karve "$@" # zsh reads this file, from fpath, as the function's first call
else
  (( ${+functions[compdef]} )) || { autoload -Uz compinit && compinit -i }
  compdef _karve karve
fi
`,
}

// completionCommand is `karve completion`.
func completionCommand() *cli.Command {
	return &cli.Command{
		Name:      "completion",
		Usage:     "print a completion script for a shell",
		ArgsUsage: "bash|zsh|fish",
		Description: "In bash: source <(karve completion bash)\n" +
			"In zsh: source <(karve completion zsh), or the output as a file _karve in a directory of $fpath",
		Action: func(c *cli.Context) error {
			shell := c.Args().First()
			script, ok := completionScripts[shell]
			if !ok {
				return fmt.Errorf("karve completion takes bash, zsh or fish, got %q", strings.TrimSpace(shell))
			}
			_, err := io.WriteString(c.App.Writer, script)
			return err
		},
	}
}

// arguments are what a shell can propose as arguments of commands.
var arguments = map[string][]string{
	"completion": {"bash", "zsh", "fish"},
}

// completeWith proposes, for the command line args, what may come next in a command: the values of
// an option that waits for one, options if a dash has been typed, and otherwise commands and
// arguments. The last of args is that of urfave/cli.
func completeWith(command *cli.Command, args []string) cli.BashCompleteFunc {
	return func(c *cli.Context) {
		last := ""
		if len(args) > 2 {
			last = args[len(args)-2]
		}
		for _, proposal := range proposals(command, last) {
			fmt.Fprintln(c.App.Writer, proposal)
		}
	}
}

func proposals(command *cli.Command, last string) (all []string) {
	name := strings.TrimLeft(last, "-")
	if name != last {
		for _, f := range command.Flags {
			if takes, ok := f.(cli.DocGenerationFlag); ok && takes.TakesValue() && slices.Contains(f.Names(), name) {
				return options.Values(f)
			}
		}
		for _, f := range command.Flags {
			if long := f.Names()[0]; strings.HasPrefix("--"+long, last) {
				all = append(all, "--"+long)
			}
		}
		return all
	}
	for _, sub := range command.Subcommands {
		if !sub.Hidden {
			all = append(all, sub.Name)
		}
	}
	return append(all, arguments[command.Name]...)
}
