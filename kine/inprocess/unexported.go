package inprocess

import (
	"reflect"
	"unsafe"
)

// etcd's client has three unexported things that another implementation of its interfaces
// has to read or set: the options of a watch, the reason for its end, and the endpoints of a
// client without a connection. TestFieldsOfTheClient fails when one of them is
// renamed.

// flag reads an unexported bool.
func flag(of any, name string) bool { return reflect.ValueOf(of).FieldByName(name).Bool() }

// setField sets an unexported field of the struct that pointer points at.
func setField[T any](pointer any, name string, value T) {
	field := reflect.ValueOf(pointer).Elem().FieldByName(name)
	if field.Type() != reflect.TypeFor[T]() {
		panic("inprocess: " + name + " is a " + field.Type().String())
	}
	*(*T)(unsafe.Pointer(field.UnsafeAddr())) = value
}
