package simulate

import (
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func TestAddressesOfNodes(t *testing.T) {
	seen := map[string]int{}
	for i := range Most {
		for _, six := range []bool{false, true} {
			for _, text := range []string{nodeAddress(i, six).String(), podRangeOf(i, six).String()} {
				if other, ok := seen[text]; ok {
					t.Fatalf("nodes %d and %d both have %s", other, i, text)
				}
				seen[text] = i
			}
			if at := nodeAddress(i, six); !nodeRanges[family(six)].Contains(at) {
				t.Fatalf("node %d has %s, which is not of %s", i, at, nodeRanges[family(six)])
			}
			if r := podRangeOf(i, six); !PodRange(six).Overlaps(r) || r != r.Masked() {
				t.Fatalf("Pods of node %d have %s, which is not of %s", i, r, PodRange(six))
			}
		}
	}
}

func TestAddressesOfPods(t *testing.T) {
	a, from := newAddresses(), netip.MustParsePrefix("10.1.2.0/29")
	one, two := types.NamespacedName{Name: "one"}, types.NamespacedName{Name: "two"}
	a.keep(netip.MustParseAddr("10.1.2.4"), two)
	var got []string
	for {
		at, err := a.take(from, one)
		if err != nil {
			break
		}
		got = append(got, at.String())
	}
	// The network's address, the gateway's, the taken one and the broadcast address are
	// left out.
	if len(got) != 4 || got[0] != "10.1.2.2" || got[1] != "10.1.2.3" || got[2] != "10.1.2.5" || got[3] != "10.1.2.6" {
		t.Fatalf("got %v", got)
	}
	a.giveBack(netip.MustParseAddr("10.1.2.4"), one) // another Pod's
	if owner, _ := a.owner(netip.MustParseAddr("10.1.2.4")); owner != two {
		t.Errorf("10.1.2.4: got %v, want it with %v", owner, two)
	}
	a.giveBack(netip.MustParseAddr("10.1.2.3"), one)
	if at, err := a.take(from, two); err != nil || at.String() != "10.1.2.3" {
		t.Errorf("got %v and %v, want what was given back", at, err)
	}
	if at, err := a.take(netip.MustParsePrefix("fd00:1::/64"), one); err != nil || at.String() != "fd00:1::2" {
		t.Errorf("IPv6: got %v and %v", at, err)
	}
}
