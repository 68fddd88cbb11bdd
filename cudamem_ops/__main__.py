"""``python -m cudamem_ops`` prints what a bug report should hold: the build, torch, the GPU and the kernels."""

import sys

import torch

from cudamem_ops import build_info, kernels


def main() -> int:
    print(f"python: {sys.version.split()[0]}")
    print(f"torch: {torch.__version__} (CUDA {torch.version.cuda})")
    for name, value in build_info().items():
        print(f"build {name}: {value}")
    if torch.cuda.is_available():
        for device in range(torch.cuda.device_count()):
            major, minor = torch.cuda.get_device_capability(device)
            print(f"cuda:{device}: {torch.cuda.get_device_name(device)}, architecture {major}.{minor}")
    try:
        rows = kernels()
    except RuntimeError as error:
        print(f"kernels: {error}")
        return 0
    columns = [name for name in rows[0] if name != "name"]
    print(f"\n{'kernel':40s}" + "".join(f"{name:>22s}" for name in columns))
    for row in rows:
        print(f"{row['name']:40s}" + "".join(f"{row[name]:>22.4g}" for name in columns))
    return 0


if __name__ == "__main__":
    sys.exit(main())
