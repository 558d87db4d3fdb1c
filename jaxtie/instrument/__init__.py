"""The instrument of `python -m jaxtie.hypothesis`: what ties the rooms' models to the estimates of
`jaxtie.hypothesis`.
"""
