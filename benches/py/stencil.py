"""A five-point stencil with numpy: milliseconds of processor time of one sweep over a square of N by N doubles, the median of SWEEPS.

    stencil.py N SWEEPS

Each sweep makes its temporaries anew, as numpy programs do."""
import sys
import time

import numpy

n, sweeps = int(sys.argv[1]), int(sys.argv[2])
grid = numpy.random.default_rng(1).random((n, n))
times = []
for _ in range(sweeps):
    begin = time.process_time()
    inner = 0.25 * (grid[:-2, 1:-1] + grid[2:, 1:-1] + grid[1:-1, :-2] + grid[1:-1, 2:])
    grid[1:-1, 1:-1] = inner
    times.append(time.process_time() - begin)
print(f"{sorted(times)[sweeps // 2] * 1e3:.4f}")
