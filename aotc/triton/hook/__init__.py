"""What installs archives in the processes of `aotc replay`: its folder goes before PYTHONPATH."""
