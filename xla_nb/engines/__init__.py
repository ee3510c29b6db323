"""Where processes start. An engine takes an order and a parcel and returns one event socket."""
