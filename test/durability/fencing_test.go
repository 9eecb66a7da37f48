package durability

import (
	"strings"
	"testing"
)

func TestTwoLeaders(t *testing.T) {
	// In the order in which a watch that was lost and listed again may give them.
	tenures := []Tenure{
		{ControllersLease, "a", 10}, {ControllersLease, "a", 20}, {ControllersLease, "b", 30}, {ControllersLease, "", 50}, {ControllersLease, "a", 40},
		{SchedulerLease, "b", 10},
	}
	for _, c := range []struct {
		lease, holder string
		revision      int64
		want          string
	}{
		{ControllersLease, "a", 9, "names nobody since revision 0"},
		{ControllersLease, "a", 10, ""},
		{ControllersLease, "a", 29, ""},
		{ControllersLease, "a", 31, "names b since revision 30"},
		{ControllersLease, "a", 41, ""},
		{ControllersLease, "a", 51, "names nobody since revision 50"},
		{SchedulerLease, "a", 15, "the lease kube-scheduler names b"},
		{SchedulerLease, "b", 35, ""},
		{"other", "b", 35, "names nobody"},
	} {
		act := Act{c.lease, c.holder, "create pods x", c.revision}
		problems := TwoLeaders(tenures, []Act{act})
		if c.want == "" && len(problems) > 0 {
			t.Errorf("%+v: %v", act, problems)
		} else if c.want != "" && (len(problems) != 1 || !strings.Contains(problems[0].Error(), c.want)) {
			t.Errorf("%+v: got %v, want one problem with %q", act, problems, c.want)
		}
	}
}
