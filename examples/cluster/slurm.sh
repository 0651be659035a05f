#!/usr/bin/env bash
#SBATCH --job-name=fedrecall
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --constraint=icelake        # one CPU kind
# A Ray cluster for the time of one job: sbatch slurm.sh run lenet-cifar10 --out runs/a
# The same again with `resume runs/a`, when the time was not enough.
set -euo pipefail
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
head=${nodes[0]}
address=$(srun --nodes=1 --ntasks=1 -w "$head" hostname --ip-address | awk '{print $1}')
port=${RAY_PORT:-6379}

start() { # on a node, until this job ends
  srun --nodes=1 --ntasks=1 --overlap -w "$1" ray start --block --disable-usage-stats --num-cpus "$SLURM_CPUS_PER_TASK" "${@:2}" &
}
start "$head" --head --node-ip-address="$address" --port="$port"
until ray status --address "$address:$port" > /dev/null 2>&1; do sleep 1; done
for node in "${nodes[@]:1}"; do
  start "$node" --address="$address:$port"
done
alive() { python -W ignore -c 'import ray, sys; ray.init(sys.argv[1], logging_level="ERROR", log_to_driver=False); print(sum(node["Alive"] for node in ray.nodes()))' "$address:$port"; }
until [ "$(alive)" -ge "${#nodes[@]}" ]; do sleep 1; done
srun --nodes=1 --ntasks=1 --overlap -w "$head" fedrecall "$@" --engine ray --ray-address "$address:$port"
