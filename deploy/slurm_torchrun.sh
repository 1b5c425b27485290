#!/usr/bin/env bash
# Training on 4 machines of 8 GPUs under Slurm. It was not run on a cluster.
# SIGTERM comes 300 seconds before the end of the job: the ranks save, and the job is put into the queue again.
#SBATCH --job-name=transduct
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
recipe=${1:?give a recipe and a folder that all machines share}
out=${2:?give a folder that all machines share}
host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
started=$(mktemp)
resume=()
[ -e "$out/recipe.yaml" ] && resume=(--resume)
srun torchrun --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node 8 --max-restarts 3 \
  --rdzv-backend c10d --rdzv-endpoint "$host:29400" --rdzv-id "$SLURM_JOB_ID" \
  --no-python transduct train "$recipe" --out "$out" "${resume[@]}" && exit
# Again, but only if this job has got further: what is refused would be refused again.
[ "$out/checkpoints" -nt "$started" ] && scontrol requeue "$SLURM_JOB_ID"
exit 1
