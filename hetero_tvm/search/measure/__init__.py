"""Measuring candidates in processes of their own: forked, on a device, on another machine."""
