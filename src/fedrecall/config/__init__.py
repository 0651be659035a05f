"""Components of a recipe: building them by name, their options and display titles."""
