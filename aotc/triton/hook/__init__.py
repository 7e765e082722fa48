"""Install archives in the processes of `aotc replay`: this folder is prepended to PYTHONPATH."""
