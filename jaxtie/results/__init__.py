"""Run folders, NetCDF, statistics, claims, tables and figures. Imports no jax."""
