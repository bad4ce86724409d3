"""A dataset for test_threads.py, in a module that spawned workers can import."""

import torch


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return torch.full((1000,), float(i)), i
