// A stand-in for etcd's server, of which kine uses one constant. See ../DESIGN.md.
module go.etcd.io/etcd/server/v3

go 1.26
