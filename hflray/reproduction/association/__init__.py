"""A question on which the field disagrees: does it matter for accuracy at which edge a device trains?"""
