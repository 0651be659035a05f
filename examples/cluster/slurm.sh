#!/usr/bin/env bash
#SBATCH --job-name=fedrecall
#SBATCH --time=04:00:00
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --constraint=icelake        # one CPU kind
# A Ray cluster for the time of one job: sbatch slurm.sh run lenet-cifar10 --out runs/a
# The same again with `resume runs/a`, when the time was not enough. `ray` and `fedrecall` are those of the environment
# that is active where sbatch is called.
set -euo pipefail
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
head=${nodes[0]}
address=$(srun --nodes=1 --ntasks=1 -w "$head" hostname --ip-address | awk '{print $1}')
port=${RAY_PORT:-6379}
patience=${RAY_PATIENCE:-300}       # seconds for the head, and again for the other nodes

start() { # on a node, until this job ends
  srun --nodes=1 --ntasks=1 --overlap -w "$1" ray start --block --disable-usage-stats --num-cpus "$SLURM_CPUS_PER_TASK" "${@:2}" &
}
wait_until() { # WHAT COMMAND..: end the job with a sentence if the command has not succeeded in time
  local end=$((SECONDS + patience))
  until "${@:2}"; do
    if [ "$SECONDS" -ge "$end" ]; then
      echo "slurm.sh: $1 within $patience s" >&2
      exit 1
    fi
    sleep 1
  done
}
answers() { timeout 20 ray status --address "$address:$port" > /dev/null 2>&1; }
alive() { timeout 60 python -W ignore -c 'import ray, sys; ray.init(sys.argv[1], logging_level="ERROR", log_to_driver=False); print(sum(node["Alive"] for node in ray.nodes()))' "$address:$port" 2> /dev/null; }
complete() { [ "$(alive || echo 0)" -ge "${#nodes[@]}" ]; }

start "$head" --head --node-ip-address="$address" --port="$port"
wait_until "the head $head has not answered" answers
for node in "${nodes[@]:1}"; do
  start "$node" --address="$address:$port"
done
wait_until "of ${#nodes[@]} nodes, not all have joined" complete
srun --nodes=1 --ntasks=1 --overlap -w "$head" fedrecall "$@" --engine ray --ray-address "$address:$port"
