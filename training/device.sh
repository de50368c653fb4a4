#!/bin/bash
# Prepare the training machine: caches of compiled code and the unpacked data. Sourced by the runs.
export TORCHINDUCTOR_CACHE_DIR=/tmp/cache/inductor TRITON_CACHE_DIR=/tmp/cache/triton
export PYTHONUNBUFFERED=1 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
mkdir -p /tmp/cache /tmp/data
if ls .train/cache.part* >/dev/null 2>&1; then cat .train/cache.part* | tar xJf - -C /tmp/cache --skip-old-files; fi
[ -e /tmp/data/meta.json ] || python3 -c "
import sys; sys.path.insert(0, '.train/code')
from pack import unpack
unpack('.train/data.tar', '/tmp/data')"
