module example.com/your-operator

go 1.26
