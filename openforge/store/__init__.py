"""DuckDB over a run's segments: views, safe SQL, exports."""
