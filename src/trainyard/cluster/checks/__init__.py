"""The checks of `doctor`: each module has pure functions, from objects of the API to what is wrong with them."""
