"""Measures a server that speaks OpenAI's API, ours or another's: `spore bench serve`.

`target` is where it is, `probe` finds out what it takes, `loads` sends requests and times the answers, which
`connection`, `http_reader` and `events` read at little cost; `figures`, `forms` and `chart` show what came out.
"""
