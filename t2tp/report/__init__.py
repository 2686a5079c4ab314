"""Reports: one list of sections, which is text for a terminal and an HTML page with diagrams.

`parts` has the parts of a section, each of which renders itself as text and as HTML. `charts` draws
bars and scatter charts, which only the page has. `units` formats bytes and seconds.
"""
