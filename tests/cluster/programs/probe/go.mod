module rltraining.dev/tests/cluster/programs/probe

go 1.21
