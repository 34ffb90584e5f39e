package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// adminCommand is `millrace admin`: the admin API of a running server, from the shell.
type adminCommand struct {
	adminTarget
	Method string `arg:"" enum:"get,post,patch,delete" help:"${enum}."`
	Path   string `arg:"" help:"Below /admin/: workspaces, workspaces/demo, workspaces/demo/api_keys, …"`
	Body   string `arg:"" optional:"" help:"JSON; - reads standard input."`
}

// adminTarget is the admin listener of a running server, and how to prove that one may use it.
type adminTarget struct {
	Server string `default:"http://127.0.0.1:8081" help:"Admin listener."`
	Data   string `help:"Data directory of a server on this machine: its admin token is read there." placeholder:"DIR"`
	Token  string `help:"The admin token itself; on the command line others can see it, so use the environment."`
}

// Run does one call and prints the answer.
func (c *adminCommand) Run(ctx context.Context, stdout io.Writer) error {
	body, err := c.body()
	if err != nil {
		return err
	}
	answer, err := c.call(ctx, strings.ToUpper(c.Method), "/admin/"+strings.Trim(c.Path, "/"), body)
	if err != nil {
		return err
	}
	defer answer.Close()
	_, err = io.Copy(stdout, answer)
	fmt.Fprintln(stdout)
	return err
}

func (c *adminCommand) body() (io.Reader, error) {
	if c.Body == "-" {
		text, err := io.ReadAll(os.Stdin)
		return bytes.NewReader(text), err
	}
	return strings.NewReader(c.Body), nil
}

// call returns the body of a good answer, which the caller closes; any other answer is an error that says what the server said.
func (c *adminTarget) call(ctx context.Context, method, path string, body io.Reader) (io.ReadCloser, error) {
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.Server, "/")+path, body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode/100 == 2 {
		return answer.Body, nil
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 64<<10))
	return nil, errors.Join(fmt.Errorf("%s %s: %s: %s", method, path, answer.Status, bytes.TrimSpace(text)), err)
}

func (c *adminTarget) token() (string, error) {
	if c.Token != "" {
		return c.Token, nil
	}
	if c.Data == "" {
		return "", errors.New("--data or --token is required: whose admin token?")
	}
	text, err := os.ReadFile(filepath.Join(c.Data, "admin-token"))
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(text)), nil
}
