from dumlp_pin.cli import main

main()
