package check

// checkPorts tries each port. runs is whether a server runs that is to be replaced, or that has the data directory: a port in use counts as
// that server's.
func checkPorts(ports []Port, runs bool) []Finding {
	var all []Finding
	for _, p := range ports {
		check := "port " + p.Option
		switch err := p.Try(); {
		case err == nil && p.Number == 0:
			all = append(all, found(check, OK, "", "any free port"))
		case err == nil:
			all = append(all, found(check, OK, "", "%d is free", p.Number))
		case runs:
			all = append(all, found(check, OK, "", "%d is in use, which counts as the running server's", p.Number))
		default:
			all = append(all, found(check, Fail, "stop that program (ss -tlnp shows it), or choose another port with --"+p.Option, "%v", err))
		}
	}
	return all
}
