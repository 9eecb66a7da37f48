package etcd

import (
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"testing"

	"go.etcd.io/etcd/server/v3/embed"
)

// Package embed of the main module is a stand-in for etcd's (kine/external/DESIGN.md). What it has
// is as in etcd, which this module links.
func TestStandInIsAsEtcd(t *testing.T) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "../../../kine/external/etcdserver/embed/embed.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	config := types.Config{Importer: importer.Default()}
	standIn, err := config.Check("embed", files, []*ast.File{file}, nil)
	if err != nil {
		t.Fatal(err)
	}
	theirs := map[string]constant.Value{
		"DefaultMaxRequestBytes": constant.MakeFloat64(embed.DefaultMaxRequestBytes),
	}
	for _, name := range standIn.Scope().Names() {
		ours, ok := standIn.Scope().Lookup(name).(*types.Const)
		want := theirs[name]
		if !ok || want == nil {
			t.Errorf("%s is not compared with etcd's", name)
			continue
		}
		if !constant.Compare(constant.ToFloat(ours.Val()), token.EQL, want) {
			t.Errorf("%s is %v, want %v as in etcd", name, ours.Val(), want)
		}
	}
	if len(standIn.Scope().Names()) != len(theirs) {
		t.Errorf("the stand-in has %v, want what kine uses", standIn.Scope().Names())
	}
}
