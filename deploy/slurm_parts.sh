#!/usr/bin/env bash
# Translating many files as a job array of Slurm: 64 parts, each on one GPU. No daemon is needed.
# It was not run on a cluster.
#SBATCH --job-name=transduct-translate
#SBATCH --array=1-64
#SBATCH --gpus=1
#SBATCH --requeue
set -euo pipefail
model=${1:?give a model, an input and a folder for the results}
input=${2:?give the input, such as 'in/*.parquet'}
out=${3:?give a folder that all machines share}
srun transduct translate "$model" "$input" --out "$out" --part "$SLURM_ARRAY_TASK_ID/64"
