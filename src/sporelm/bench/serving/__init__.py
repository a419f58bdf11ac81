"""Benchmark of a server with OpenAI's API, Sporelm's or another one: `spore bench serve`.

`server_target` is its address and `server_probe` finds its supported fields. `load_generator` sends requests and times
the answers, which `http_connection`, `http_reader` and `event_stream` read at little cost. `serving_rows`,
`serving_tables` and `serving_chart` present the results.
"""
