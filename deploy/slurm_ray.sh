#!/usr/bin/env bash
# Translating many files on 4 machines of 8 GPUs by Ray under Slurm. It was not run on a cluster.
# Whoever reaches Ray's ports can run code there; so the cluster asks for a token.
#SBATCH --job-name=transduct-ray
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
set -euo pipefail
model=${1:?give a model, an input and a folder for the results}
input=${2:?give the input, such as 'in/*.parquet'}
out=${3:?give a folder that all machines share}
export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(head -c 32 /dev/urandom | base64)
export RAY_AUTH_TOKEN
host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun ray symmetric-run --address "$host:6379" --min-nodes "$SLURM_JOB_NUM_NODES" --num-gpus 8 -- \
  transduct translate "$model" "$input" --out "$out" --ray auto --workers 32
