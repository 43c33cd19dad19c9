"""The kernels: functions and weight holders over packed rows. Know shapes and bits; know no model and no sequence.

Activations are packed: `[T, width]`, T rows of any number of sequences one after another. Each op is tested
against its plainly right twin in `reference.py`.
"""
