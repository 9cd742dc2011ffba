"""A run as one HTML page: `build.py` fills `page.html` with it; `page.css` and `page.js` are what a browser does."""
