package inprocess

import (
	"reflect"
	"unsafe"
)

// etcd's client has two unexported fields that another implementation of its interfaces has to
// set: the endpoints of a client without a connection, and the error that ends a stream of
// chunks. TestFieldsOfTheClient fails when one of them is renamed.

// setField sets an unexported field of the struct that pointer points at.
func setField[T any](pointer any, name string, value T) {
	field := reflect.ValueOf(pointer).Elem().FieldByName(name)
	if field.Type() != reflect.TypeFor[T]() {
		panic("inprocess: " + name + " is a " + field.Type().String())
	}
	*(*T)(unsafe.Pointer(field.UnsafeAddr())) = value
}
