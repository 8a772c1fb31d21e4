module apilet-proxy

go 1.26.0
