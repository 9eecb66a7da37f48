// Package join makes the machine on which it runs a node of a cluster, upgrades its kubelet, and removes everything again.
//
// [Join] first checks everything that can be checked (checks), and then changes the machine (steps). A step writes into the record
// what it is about to change, so that its undo finds that also after the process was killed. Package ask has the questions to
// the cluster, and package sshkeys the keys of SSH. DESIGN.md has the decisions.
package join

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/karve-k8s/karve/nodes/join/ask"
	"github.com/karve-k8s/karve/nodes/join/sshkeys"
)

// joining is a join, and what its checks have found.
type joining struct {
	*Machine
	Options
	record *record

	facts   facts
	account *sshkeys.Account // nil: without SSH
	missing []string         // packages
	cluster *ask.Cluster
	keys    []string // for account
	stage   string   // a directory with the kubelet
	kubelet kubelet
	runtime containerRuntime
}

// checks look at the options, the machine, the cluster and the kubelet, and change nothing.
var checks = []func(*joining, context.Context) error{
	(*joining).checkMachine, (*joining).checkAccount, (*joining).checkNetwork, (*joining).askCluster, (*joining).takeKubelet,
}

// step changes the machine. undo may find that nothing, or only a part, has been done; nil: the undo of an earlier step does it.
type step struct {
	do   func(*joining, context.Context) error
	undo func(*Machine, context.Context, *record, func(string, ...any)) error
}

// steps are in the order of a join. A removal undoes them in the other.
var steps []step

func init() { // Remove, which undo calls, refers to them
	steps = []step{
		{(*joining).begin, (*Machine).removeRecord},
		{(*joining).installPackages, nil}, // they stay
		{(*joining).useContainerd, (*Machine).removeFiles},
		{(*joining).placeFiles, nil},
		{(*joining).authorize, (*Machine).withdraw},
		{(*joining).prepareKernel, nil},
		{(*joining).startKubelet, (*Machine).removeKubelet},
		{(*joining).becomeNode, nil},
	}
}

// Join makes this machine a node. If it fails, it leaves the machine as it found it. On a machine that is the node
// already, it changes nothing, unless the cluster no longer accepts the kubelet's certificate: then it gets another one,
// and Pods keep running.
func Join(ctx context.Context, m *Machine, o Options) error {
	if err := m.supported(); err != nil {
		return err
	}
	wrong := o.complete()
	if old, err := m.readRecord(); err != nil {
		return err
	} else if old != nil {
		return m.joinedBefore(ctx, old, o, wrong)
	}
	if wrong != nil {
		return wrong
	}
	j := &joining{Machine: m, Options: o, record: &record{Server: o.Server, Node: o.Name, OwnServer: o.OwnServer}}
	defer func() { os.RemoveAll(j.stage) }()
	for _, check := range checks {
		if err := check(j, ctx); err != nil {
			return err
		}
	}
	for _, s := range steps {
		if err := s.do(j, ctx); err != nil {
			return j.fail(ctx, err)
		}
	}
	return nil
}

// fail undoes the steps. The caller's context may be the reason for err.
func (j *joining) fail(ctx context.Context, err error) error {
	undoing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Minute)
	defer cancel()
	if undo := j.undo(undoing, j.record, j.Say); undo != nil {
		return fmt.Errorf("%w; not everything could be removed again (%w): run `karve node remove`", err, undo)
	}
	return err
}

// joinedBefore is Join on a machine with a record.
func (m *Machine) joinedBefore(ctx context.Context, old *record, o Options, wrong error) error {
	switch done := m.exists(kubeconfigFile) && !m.exists(bootstrapFile); {
	case !done:
		return fmt.Errorf("an earlier attempt to join %s was interrupted: remove what it left with `karve node remove`, then join again", old.Server)
	case wrong != nil || old.Node != o.Name:
		return already(old)
	}
	if err := m.joinAgain(ctx, old, o); err != nil {
		return err
	}
	if o.SSHUser != "" && (old.SSH == nil || old.SSH.User != o.SSHUser) {
		o.Warn("--ssh-user %s was not looked at: put the line of `karve ssh public-key` into that user's %s by hand, or remove the node and join again", o.SSHUser, sshkeys.File)
	}
	return nil
}

func (j *joining) checkMachine(context.Context) (err error) {
	if j.IP != "" && !j.hasAddress(j.IP) {
		return fmt.Errorf("--node-ip %s: this machine has no such address: take one that `ip address` shows, or leave the option out", j.IP)
	}
	if j.facts, err = j.look(); err != nil {
		return err
	}
	for _, note := range j.facts.notes {
		j.Warn("%s", note)
	}
	j.missing, err = j.missingPackages()
	return err
}

func (j *joining) checkAccount(context.Context) (err error) {
	if j.SSHUser == "" {
		return nil
	}
	if j.account, err = sshkeys.Find(j.SSHUser); err != nil {
		return err
	}
	if !j.has("sshd") {
		j.Warn("--ssh-user: there is no sshd on this machine: until there is one (Debian: openssh-server), the server does not reach the node")
	}
	return nil
}

func (j *joining) checkNetwork(context.Context) error { return j.networkIsFree(defaultNetworkDir) }

func (j *joining) askCluster(ctx context.Context) (err error) {
	j.Say("asking %s about its cluster", j.Server)
	if j.cluster, err = j.questions().Discover(ctx); err != nil {
		return err
	}
	if err := j.cluster.Free(ctx, j.Name, j.machineID(), j.hasAddress); err != nil {
		return err
	}
	if j.cluster.PodSubnet == "" && j.PodCIDR == "" && !j.NoNetwork {
		return errors.New("the cluster gives nodes no Pod addresses: name those of this node with --pod-cidr, or join with --no-network if a network plugin brings them")
	}
	if j.account != nil {
		j.keys, err = j.cluster.OfferedKeys(ctx, j.SSHUser, j.Patience)
	}
	return err
}

func (j *joining) takeKubelet(ctx context.Context) (err error) {
	if j.stage, err = j.makeStage(); err != nil {
		return err
	}
	j.kubelet, err = j.fetchKubelet(ctx, j.Options, j.cluster.Version, j.stage)
	return err
}

func (j *joining) begin(context.Context) error { return j.writeRecord(j.record) }

func (j *joining) installPackages(ctx context.Context) error {
	if !j.exists(containerdConfig) {
		// The record has that there was none before a package brings one: to the next join, that would be somebody's decision.
		j.record.keep(containerdConfig)
	}
	return j.install(ctx, j.record, j.missing, j.Say)
}

func (j *joining) useContainerd(ctx context.Context) (err error) {
	if before := j.record.Files; len(before) > 0 { // there was no configuration
		if err := j.configureContainerd(ctx, j.record, j.facts); err != nil {
			return err
		}
	}
	if j.runtime, err = j.containerd(ctx); err != nil {
		return err
	}
	j.record.Runtime = containerdSocket
	if err := j.writeRecord(j.record); err != nil || j.NoNetwork {
		return err
	}
	if err := j.hasPlugins(j.runtime); err != nil {
		return err
	}
	return j.networkIsFree(j.runtime.configDir)
}

func (j *joining) placeFiles(context.Context) error {
	return j.place(j.record, j.Options, j.facts, j.cluster, j.runtime, j.kubelet)
}

func (j *joining) authorize(ctx context.Context) (err error) {
	if j.account == nil {
		return nil
	}
	// The record also has a user without lines, so that the same join again knows of the user.
	j.record.SSH = &sshkeys.Access{User: j.SSHUser}
	if j.record.SSH.Lines, err = j.account.Missing(ctx, j.keys); err != nil {
		return err
	}
	if err := j.writeRecord(j.record); err != nil {
		return err
	}
	if err := j.account.Add(ctx, j.record.SSH.Lines); err != nil {
		return err
	}
	j.Say("the server may log in as %s, and forward connections", j.SSHUser)
	return nil
}

func (j *joining) startKubelet(ctx context.Context) error {
	if err := j.startService(ctx); err != nil {
		return fmt.Errorf("the kubelet could not be started: %w", err)
	}
	j.Say("the kubelet %s runs; waiting until %s is Ready", j.kubelet.version, j.Name)
	return nil
}

func (j *joining) becomeNode(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, j.Timeout)
	defer cancel()
	if err := j.becomeReady(waiting); err != nil {
		// A kubelet may not delete its Node.
		left := fmt.Sprintf("The cluster may have the Node %s already: before another attempt, remove it with `kubectl delete node %[1]s`", j.Name)
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted. %s", left)
		}
		return fmt.Errorf("%w. %s. %s", err, j.logHint(context.WithoutCancel(ctx)), left)
	}
	if len(dnsOf(j.cluster.Kubelet)) == 0 {
		j.Warn("the cluster has no DNS yet, so Pods here have none: run `karve addons apply coredns` on the server, and then `karve node upgrade` here")
	}
	// The kubelet has its own certificate now. The token is not needed again.
	return removeIfThere(j.path(bootstrapFile))
}
