package bootstrap

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// ownable says which parts of an object can have owners of their own, for all first objects
// together. Upstream reads that in its OpenAPI schema, which takes longer to build than
// everything in this package. What is not named here is deduced: every field of a struct or
// map is ownable, and a list as a whole.
var ownable = func() typed.ParseableType {
	ref := func(name string) schema.TypeRef { return schema.TypeRef{NamedType: &name} }
	deduced, whole := ref("__untyped_deduced_"), ref("__untyped_atomic_")
	def := func(name string, atom schema.Atom) schema.TypeDef { return schema.TypeDef{Name: name, Atom: atom} }
	var s schema.Schema
	s.Types = append(s.Types, typed.DeducedParseableType.Schema.Types...)
	s.Types = append(s.Types,
		def("object", schema.Atom{Map: &schema.Map{ElementType: deduced, Fields: []schema.StructField{
			{Name: "roleRef", Type: whole}, {Name: "spec", Type: ref("spec")},
		}}}),
		def("spec", schema.Atom{Map: &schema.Map{ElementType: deduced, Fields: []schema.StructField{
			{Name: "ports", Type: ref("ports")},
		}}}),
		def("ports", schema.Atom{List: &schema.List{
			ElementType: deduced, ElementRelationship: schema.Associative, Keys: []string{"port", "protocol"},
		}}),
	)
	return typed.ParseableType{Schema: &s, TypeRef: ref("object")}
}()

// converter gives a field manager the schema of an object.
type converter struct{ managedfields.TypeConverter }

func (converter) ObjectToTyped(o runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	return ownable.FromStructured(o, opts...)
}

// applied returns the entry of a manager that does not create an object but applies a part
// of it.
func applied(manager, subresource, set string) metav1.ManagedFieldsEntry {
	return owns(manager, metav1.ManagedFieldsOperationApply, subresource, set)
}

// owns returns the entry of a manager that has changed a part of an object with operation.
func owns(manager string, operation metav1.ManagedFieldsOperationType, subresource, set string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{
		Manager: manager, Operation: operation, Subresource: subresource,
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(set),
	}
}

// appliedCondition returns the entry for one condition of the status.
func appliedCondition(manager, condition string, owned ...string) metav1.ManagedFieldsEntry {
	set := `{".":{}`
	for _, name := range owned {
		set += `,"f:` + name + `":{}`
	}
	return applied(manager, "status", `{"f:status":{"f:conditions":{"k:{\"type\":\"`+condition+`\"}":`+set+`}}}}`)
}
