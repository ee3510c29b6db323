"""Where processes start. An engine takes an order and a parcel and gives back one event socket."""
