package external

import (
	"errors"
	"fmt"
	"reflect"
	"unsafe"

	"github.com/k3s-io/kine/pkg/drivers/generic"
	"github.com/k3s-io/kine/pkg/logstructured"
	"github.com/k3s-io/kine/pkg/logstructured/sqllog"
	"github.com/k3s-io/kine/pkg/server"
)

// dialectOf reaches into a backend of kine's for its statements: the constructors of its drivers do not return a dialect, and fields are not
// exported. TestDialectOf fails when one of them is renamed.
func dialectOf(backend server.Backend) (*generic.Generic, error) {
	structured, ok := backend.(*logstructured.LogStructured)
	if !ok {
		return nil, fmt.Errorf("kine's backend is a %T", backend)
	}
	inner, ok := unexported[logstructured.Log](structured, "log")
	if !ok {
		return nil, errors.New("kine's LogStructured has no field log")
	}
	table, ok := (*inner).(*sqllog.SQLLog)
	if !ok {
		return nil, fmt.Errorf("kine's log is a %T", *inner)
	}
	d, ok := unexported[server.Dialect](table, "d")
	if !ok {
		return nil, errors.New("kine's SQLLog has no field d")
	}
	dialect, ok := (*d).(*generic.Generic)
	if !ok {
		return nil, fmt.Errorf("kine's dialect is a %T", *d)
	}
	return dialect, nil
}

// unexported returns a field of type T of the struct that of points at.
func unexported[T any](of any, name string) (*T, bool) {
	field := reflect.ValueOf(of).Elem().FieldByName(name)
	if !field.IsValid() || field.Type() != reflect.TypeFor[T]() {
		return nil, false
	}
	return (*T)(unsafe.Pointer(field.UnsafeAddr())), true
}
