"""What is drawn or written about results: pages with tables, plots, figures. Needs no torch."""
