"""Drivers: each turns an order into a running thing of one backend. They are strangers to each other.

The contract is `base`; `tests/conformance/test_driver.py` holds every driver to it, the fake of `dsec.testing`
included.
"""
